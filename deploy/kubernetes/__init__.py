"""Render the Helm chart and generate the plain manifests from it."""
