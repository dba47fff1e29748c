"""What the user wants changed in an image beyond the catalogue: files, packages, scripts, a kernel, Python packages.

Files are written without executing anything (:mod:`files`, :mod:`gcloud`); the rest runs inside the image, apart
from this machine (:mod:`execution`, :mod:`namespace`).
"""
