"""Hard networks in the formats of others."""
