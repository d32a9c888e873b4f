"""`deepspeed train.py ...`, the older way to start training, hands over to p2l.train."""

from p2l.common.cli import run
from p2l.train import main

if __name__ == "__main__":
    run(main)
