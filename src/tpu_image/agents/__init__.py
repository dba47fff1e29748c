"""Agents that Google publishes as container images: got at build time, and put into an image so that they start.

    text of a user --sources--> ContainerImage --layers--> RootFileSystem --installation--> units, nodes, record

Nothing of an image is executed here. Every blob is held against its SHA-256 before anything of it is used, and what
an image holds is a tree in which links are text: no path of it can lead outside.
"""
