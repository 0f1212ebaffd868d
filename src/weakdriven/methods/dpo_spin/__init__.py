"""DPO and SPIN: `stage.py` makes pairs and trains on them, `trainer.py` is TRL's DPOTrainer on those pairs."""
