package main

// transactions is not used: franz-go's own test of transactions runs instead.
func transactions([]string, string, []string) {}
