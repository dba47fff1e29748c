"""What is fetched or made once and kept: downloads, and the cache folder that they and the bases are in."""
