"""The tests of Pillarbox."""

# Seconds to wait for what must happen. Far longer than it takes, since no test may depend on the
# speed of the machine.
PATIENCE = 180.0
