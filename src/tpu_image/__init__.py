"""tpu-image: turn an operating system image into one that Google Cloud TPU works on, and prove it."""

__version__ = "0.1.0"
