"""Where files are: a directory, the inside of a disk image, an archive, or a plan in progress.

Every kind answers the same questions through :class:`~tpu_image.trees.base.Tree`, so that a check is
written once and tested on a few files in memory.
"""
