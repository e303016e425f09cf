"""What the command lines share: options, tables, progress, and the commands with more to them than a verb."""
