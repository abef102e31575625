// Package settings has the settings of choices: the operator's Config, the Settings made of it, and a request's own Options,
// which go before it. Settings never change; Current has the settings in force, until a reload.
package settings
