package decisionlog

var Regret = regret
