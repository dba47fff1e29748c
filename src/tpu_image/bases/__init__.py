"""The embedded bases: a disk image of Debian or Ubuntu that starts by BIOS and by UEFI, made of packages.

Needs neither root, mounts nor loop devices, but tools of Debian: mmdebstrap, mke2fs, mtools, sfdisk, qemu-img.
"""

from tpu_image.bases.errors import BaseError
from tpu_image.bases.make import clean, resolve
from tpu_image.bases.releases import DEFAULT, REFERENCES

__all__ = ["DEFAULT", "REFERENCES", "BaseError", "clean", "resolve"]
