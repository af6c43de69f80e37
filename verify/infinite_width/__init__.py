"""The limit of infinite width with its numbers, where experts and layers stay few."""
