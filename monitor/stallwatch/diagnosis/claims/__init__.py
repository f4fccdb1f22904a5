"""One file per explanation: each looks at the analysis and claims it, rejects it with the reason, or says nothing."""
