"""The lab: an image boots in QEMU with emulated TPUs, as Compute Engine would boot it, and is judged from inside."""
