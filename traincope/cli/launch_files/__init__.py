"""Launch files (`traincope train --emit`): a training of several hosts, in the format of a scheduler."""
