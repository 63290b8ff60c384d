"""The mathematics: maps, proximal maps, pairs, schedules, scales and the methods made of them."""
