"""Small things that every package may use: words, files, schemas, workarounds."""
