#!/bin/sh
# Create .env and the files of secrets/ with random passwords, once. Existing ones are kept.
set -eu
umask 077
cd "$(dirname "$0")"

random() {
    # 32 bytes as hex; no other tool than the base system's is needed.
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n'
}

if [ -e .env ]; then
    echo "$PWD/.env exists; nothing was changed."
    exit 0
fi
app=$(random)
{
    echo "OWNER_PASSWORD=$(random)"
    echo "APP_PASSWORD=$app"
    echo "REDIS_PASSWORD=$(random)"
    echo "GRAFANA_PASSWORD=$(random)"
    echo "# Encrypts secrets. Keep a copy elsewhere: without it they are lost."
    echo "RUNLANE_SECRET_KEY=$(random)"
} >.env.new
mkdir -p secrets
# For the profile pgbouncer, and for Prometheus: put a key with workers:view into prometheus.key.
printf '"runlane_app" "%s"\n' "$app" >secrets/userlist.txt
: >secrets/prometheus.key
# Processes in containers have other users, so the files are readable. Users of this machine cannot enter the folder.
chmod 700 secrets
chmod 644 secrets/userlist.txt secrets/prometheus.key
mv .env.new .env
echo "Created $PWD/.env with random passwords (mode 600)."
