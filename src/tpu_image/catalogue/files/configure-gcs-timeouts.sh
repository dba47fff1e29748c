#!/bin/sh
# Sets the time-outs of Cloud Storage in /etc/environment to at least what the TPU documentation asks for.
#
# tpu-image-system-environment.service does the same at every boot; this is for doing it by hand or from a start
# script of your own:  bash /var/scripts/configure-gcs-timeouts.sh

exec /usr/bin/python3 -I /usr/lib/tpu-image/runtime.pyz storage-timeouts
