"""`python -m weakdriven`, which launchers such as `accelerate launch -m` and `torchrun -m` call."""

from weakdriven.cli import main

if __name__ == "__main__":
    main()
