"""Disk images without root, mounts or loop devices: containers, partitions, file systems, one tree.

A :class:`~tpu_image.disks.source.BlockSource` is a disk's bytes whatever they are stored in;
:func:`~tpu_image.disks.image.open_image` makes one of a file, and
:func:`~tpu_image.disks.image_tree.open_tree` finds the operating system's files on it. Everything read here
is hostile: every table is bounded by the file that holds it, and what is wrong becomes a
:class:`~tpu_image.disks.errors.DiskError`.
"""
