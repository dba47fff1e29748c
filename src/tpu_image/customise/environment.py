"""What programs find that run in an image while it is made: variables, and files that stand in for some of its own."""

from __future__ import annotations

import os

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "NEEDRESTART_SUSPEND": "1",
    # systemctl then changes files alone, and says that it ignores the rest (systemd, docs/ENVIRONMENT.md).
    "SYSTEMD_OFFLINE": "1",
}

STAND_INS = (
    # No service is started by a maintainer script (Debian policy 9.3.3.2; invoke-rc.d(8)).
    ("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755),
    ("/sbin/start-stop-daemon", "#!/bin/sh\nexit 0\n", 0o755),
    # "dep" would pack the drivers of the machine that builds (initramfs.conf(5)).
    ("/etc/initramfs-tools/conf.d/zz-tpu-image", "MODULES=most\n", 0o644),
)

RESOLVER = "/etc/resolv.conf"
"""Stood in for as well, since the image's own may need a service that does not run."""

PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


def proxies() -> dict[str, str]:
    """Proxies that this process was told to use, in both spellings."""
    found = {}
    for name in PROXIES:
        for spelling in (name, name.upper()):
            if value := os.environ.get(spelling):
                found[spelling] = value
    return found
