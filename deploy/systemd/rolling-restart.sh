#!/bin/sh
# Restart the server and each worker of this machine, one after the other; wait until each is ready before the next one.
# A unit is ready when systemd has its READY=1, so `systemctl restart` returns only then.
set -eu
for unit in $(systemctl list-units --plain --no-legend --state=active 'runlane-server.service' 'runlane-worker@*.service' |
    awk '{print $1}'); do
    echo "restarting $unit"
    systemctl restart "$unit"
done
