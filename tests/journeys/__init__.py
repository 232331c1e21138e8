"""Journeys of new users, from their program to the right insight: two commands, no guide."""
