"""What kopf hears: TrainingJobs only. One asyncio actor a job."""
