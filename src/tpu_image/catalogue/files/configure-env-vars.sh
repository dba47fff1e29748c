#!/bin/sh
# Sets CLOUDSDK_PYTHON in /etc/environment and writes the tpu-env attribute of this VM to /home/tpu-runtime/tpu-env.
#
# tpu-image-system-environment.service and tpu-image-environment.service do the same at every boot; this is for
# doing it by hand or from a start script of your own:  bash /var/scripts/configure-env-vars.sh
#
# Exit status: 0 done; 65 the attribute cannot be used; 66 it is not set; 69 no answer; 73 cannot write.

runtime=/usr/lib/tpu-image/runtime.pyz

/usr/bin/python3 -I "$runtime" cloudsdk-python
cloudsdk_python=$?
/usr/bin/python3 -I "$runtime" environment || exit
exit "$cloudsdk_python"
