# An image with your own tasks, agents and orchestrations on top of Runlane's.
#   docker build -f app.Dockerfile -t shop .
#   docker run shop worker shop.tasks:app
ARG BASE_IMAGE=runlane:0.1.1
FROM ${BASE_IMAGE}
COPY --chmod=0555 shop /app/shop
COPY --chmod=0555 definitions /app/definitions
ENV RUNLANE_DEFINITIONS_DIR=/app/definitions
CMD ["worker", "shop.tasks:app"]
