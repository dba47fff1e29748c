"""What a Cloud TPU image needs: every requirement, once."""
