"""``python -m tpu_image``: the command line."""

from tpu_image.cli import run

if __name__ == "__main__":
    run()
