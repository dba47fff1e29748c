"""How verdicts are shown: text, JSON, JUnit, SARIF."""
