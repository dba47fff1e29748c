"""A plan in the languages of other tools: a shell script, cloud-config."""
