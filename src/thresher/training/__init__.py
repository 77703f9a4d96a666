"""Learning: fine-tune, soft stage, thresholds fixed, hard stage."""
