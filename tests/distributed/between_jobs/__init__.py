"""Jobs of their own whose ranks exchange gradients over groups that no torch.distributed of one job knows."""
