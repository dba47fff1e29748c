"""The embedded bases: a disk image of Debian or Ubuntu that starts by BIOS and by UEFI, made of packages.

``releases.REFERENCES`` are what there is, ``make.resolve`` gives the image of one. That needs neither root, mounts nor
loop devices, but tools of Debian: mmdebstrap, mke2fs, mtools, sfdisk, qemu-img.
"""
