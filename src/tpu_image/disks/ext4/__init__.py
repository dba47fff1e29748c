"""ext2, ext3 and ext4 for reading, in plain Python.

Layout: Linux, Documentation/filesystems/ext4/, and fs/ext4/ext4.h for the names of the flags.
"""
