"""Run the processes of clusters on several hosts, over engines that start programs there."""
