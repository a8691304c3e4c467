"""What Pillarbox reaches here, each figure beside a peer or a raw limit measured in the same run."""
