"""Emulated TPUs: a server of the vfio-user protocol, whose client is QEMU's device ``vfio-user-pci``.

The protocol is specified in QEMU's documentation, ``docs/interop/vfio-user.rst``, version 0.0 and 0.1.
"""
