"""What runs on a TPU VM at every boot: standard library, Python 3.8 and PyYAML, packed as one zipapp.

Metadata is data of others: it is parsed, never evaluated, and what cannot be written down safely is refused.
"""
