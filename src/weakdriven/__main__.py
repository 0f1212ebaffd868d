"""`python -m weakdriven`, which launchers such as `accelerate launch -m` and `torchrun -m` call."""

from weakdriven.commands.app import main

if __name__ == "__main__":
    main()
