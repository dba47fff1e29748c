#!/usr/bin/python3
"""Print a value of this VM's metadata:  python3 /var/scripts/get-vm-metadata.py KEY [DEFAULT [TYPE]].

TYPE is the part of the path below instance/, attributes when not given. DEFAULT is printed for a key that is not
set. Exit status: 0 printed; 64 wrong arguments; 66 not set and no default; 69 no answer; 77 refused.
"""

import os
import sys

RUNTIME = "/usr/lib/tpu-image/runtime.pyz"

os.execv(sys.executable, [sys.executable, "-I", RUNTIME, "get-metadata", *sys.argv[1:]])
