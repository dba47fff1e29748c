"""What runs on a TPU VM at every boot: standard library and Python 3.8 alone, packed as one zipapp."""
