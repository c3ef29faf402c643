// Command faults has things go wrong around an agent.
package main
