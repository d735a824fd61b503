"""hq for PSI/J."""
