"""A launcher of Hydra: `hydra/launcher=submitit_hq`."""
