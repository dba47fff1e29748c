"""The configuration of a base: what is written over the packages' own files."""

from __future__ import annotations

from pathlib import Path

from tpu_image.bases.layout import Layout
from tpu_image.bases.releases import Release

_FSTAB = """\
UUID={root} / ext4 rw,discard,errors=remount-ro 0 1
UUID={esp} /boot/efi vfat defaults,umask=0077 0 0
"""

_HOSTS = """\
127.0.0.1 localhost
169.254.169.254 metadata.google.internal metadata
::1 localhost ip6-localhost ip6-loopback
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
"""

_GRUB = """\
# Compute Engine shows the first serial port.
GRUB_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="console=ttyS0,115200"
GRUB_TERMINAL="console serial"
GRUB_SERIAL_COMMAND="serial --speed=115200"
GRUB_DISABLE_OS_PROBER=true
"""

_NETWORK = """\
# Every network card by DHCP, with the MTU of the network (1460 on Compute Engine unless set otherwise).
[Match]
Type=ether

[Network]
DHCP=yes

[DHCPv4]
UseMTU=yes
UseDomains=yes
"""

_WAIT_ONLINE = """\
[Service]
ExecStart=
ExecStart=/lib/systemd/systemd-networkd-wait-online --any
"""

_CLOUD = """\
# A language other than the C locale would have to be generated at the first boot.
locale: C.UTF-8
# systemd-networkd asks DHCP on every card: /etc/systemd/network/80-dhcp.network
network:
  config: disabled
"""

_HOST_KEYS = """\
# cloud-init makes the host keys where there is metadata; elsewhere they are made here.
[Service]
ExecStartPre=
ExecStartPre=/usr/bin/ssh-keygen -A
ExecStartPre=/usr/sbin/sshd -t
"""

_TIME = """\
[Time]
NTP=metadata.google.internal
"""


def configuration(release: Release, layout: Layout) -> dict[str, str]:
    """Give the text of every file, by its path in the root."""
    return {
        "etc/apt/sources.list": "".join(f"{line}\n" for line in release.public_sources),
        "etc/cloud/cloud.cfg.d/90-base.cfg": _CLOUD,
        "etc/default/locale": "LANG=C.UTF-8\n",
        "etc/default/grub.d/40-serial-console.cfg": _GRUB,
        "etc/fstab": _FSTAB.format(root=layout.root_uuid, esp=layout.esp_uuid),
        "etc/hostname": f"{release.distribution}\n",
        "etc/hosts": _HOSTS,
        "etc/systemd/network/80-dhcp.network": _NETWORK,
        "etc/systemd/system/ssh.service.d/host-keys.conf": _HOST_KEYS,
        "etc/systemd/system/systemd-networkd-wait-online.service.d/any.conf": _WAIT_ONLINE,
        "etc/systemd/timesyncd.conf.d/compute-engine.conf": _TIME,
    }


def write_configuration(folder: Path, files: dict[str, str]) -> None:
    """Write the files below a folder, with the modes that they shall have."""
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(0o644)
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
