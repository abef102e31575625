package grpcapi

import (
	kvpilotv1 "github.com/kvpilot/kvpilot/gen/kvpilot/v1"
	"github.com/kvpilot/kvpilot/server/domain/caller"
)

// methodRoles gives, for each method of the contract, the roles of which a caller needs one; a caller with the role admin has
// each of them. It is the only place that says so: REST routes have the roles of their method.
//
// caller.Any stands where the answer depends on the caller: without the role observe it has the tenant's own decisions only.
func methodRoles() map[string]caller.Roles {
	return map[string]caller.Roles{
		kvpilotv1.InferenceService_ChatCompletions_FullMethodName:         caller.Infer,
		kvpilotv1.InferenceService_ChatCompletionsBatch_FullMethodName:    caller.Infer,
		kvpilotv1.InferenceService_Completions_FullMethodName:             caller.Infer,
		kvpilotv1.InferenceService_Responses_FullMethodName:               caller.Infer,
		kvpilotv1.InferenceService_Messages_FullMethodName:                caller.Infer,
		kvpilotv1.InferenceService_CountMessageTokens_FullMethodName:      caller.Infer,
		kvpilotv1.InferenceService_Generate_FullMethodName:                caller.Infer,
		kvpilotv1.InferenceService_Embeddings_FullMethodName:              caller.Infer,
		kvpilotv1.InferenceService_EmbedV2_FullMethodName:                 caller.Infer,
		kvpilotv1.InferenceService_Rerank_FullMethodName:                  caller.Infer,
		kvpilotv1.InferenceService_Score_FullMethodName:                   caller.Infer,
		kvpilotv1.InferenceService_Classify_FullMethodName:                caller.Infer,
		kvpilotv1.InferenceService_Pooling_FullMethodName:                 caller.Infer,
		kvpilotv1.InferenceService_AudioTranscriptions_FullMethodName:     caller.Infer,
		kvpilotv1.InferenceService_AudioTranslations_FullMethodName:       caller.Infer,
		kvpilotv1.InferenceService_RenderChatCompletions_FullMethodName:   caller.Infer,
		kvpilotv1.InferenceService_RenderCompletions_FullMethodName:       caller.Infer,
		kvpilotv1.InferenceService_RenderMessages_FullMethodName:          caller.Infer,
		kvpilotv1.InferenceService_RenderResponses_FullMethodName:         caller.Infer,
		kvpilotv1.InferenceService_CohereChat_FullMethodName:              caller.Infer,
		kvpilotv1.InferenceService_RenderCohereChat_FullMethodName:        caller.Infer,
		kvpilotv1.InferenceService_Realtime_FullMethodName:                caller.Infer,
		kvpilotv1.InferenceService_LoadAdapter_FullMethodName:             caller.Admin,
		kvpilotv1.InferenceService_UnloadAdapter_FullMethodName:           caller.Admin,
		kvpilotv1.InferenceService_DerenderChatCompletions_FullMethodName: caller.Infer,
		kvpilotv1.InferenceService_DerenderCompletions_FullMethodName:     caller.Infer,
		kvpilotv1.InferenceService_TokenizeBody_FullMethodName:            caller.Infer,
		kvpilotv1.InferenceService_DetokenizeBody_FullMethodName:          caller.Infer,
		kvpilotv1.InferenceService_RetrieveResponse_FullMethodName:        caller.Infer,
		kvpilotv1.InferenceService_CancelResponse_FullMethodName:          caller.Infer,
		kvpilotv1.InferenceService_ListModels_FullMethodName:              caller.Any,
		kvpilotv1.InferenceService_GetModel_FullMethodName:                caller.Any,
		kvpilotv1.InferenceService_Forward_FullMethodName:                 caller.Forward,

		kvpilotv1.RoutingService_Tokenize_FullMethodName:          caller.Route,
		kvpilotv1.RoutingService_Detokenize_FullMethodName:        caller.Route,
		kvpilotv1.RoutingService_ChooseReplica_FullMethodName:     caller.Route | caller.Observe, // observe: dry runs only
		kvpilotv1.RoutingService_RouteBody_FullMethodName:         caller.Route,
		kvpilotv1.RoutingService_ReportReservation_FullMethodName: caller.Route,
		kvpilotv1.RoutingService_TrackReservation_FullMethodName:  caller.Route,
		kvpilotv1.RoutingService_ExplainDecision_FullMethodName:   caller.Any,
		kvpilotv1.RoutingService_ListDecisions_FullMethodName:     caller.Any,
		kvpilotv1.RoutingService_WatchDecisions_FullMethodName:    caller.Any,
		kvpilotv1.RoutingService_ScoreOverlap_FullMethodName:      caller.Route,
		kvpilotv1.RoutingService_GetLoads_FullMethodName:          caller.Observe,
		kvpilotv1.RoutingService_ListPrograms_FullMethodName:      caller.Any,
		kvpilotv1.RoutingService_ListSplits_FullMethodName:        caller.Observe,
		kvpilotv1.RoutingService_SetSplitSide_FullMethodName:      caller.Admin,
		kvpilotv1.RoutingService_ListPolicies_FullMethodName:      caller.Any,

		kvpilotv1.ConfigService_ReloadConfig_FullMethodName:       caller.Admin,
		kvpilotv1.ConfigService_ListConfigVersions_FullMethodName: caller.Admin,
		kvpilotv1.ConfigService_RollbackConfig_FullMethodName:     caller.Admin,

		kvpilotv1.RouterService_GetStatus_FullMethodName:   caller.Observe,
		kvpilotv1.RouterService_GetHistory_FullMethodName:  caller.Observe,
		kvpilotv1.RouterService_ListTraces_FullMethodName:  caller.Observe,
		kvpilotv1.RouterService_ListRouters_FullMethodName: caller.Observe,

		kvpilotv1.ReplicaService_Register_FullMethodName:   caller.Admin,
		kvpilotv1.ReplicaService_Deregister_FullMethodName: caller.Admin,
		kvpilotv1.ReplicaService_Drain_FullMethodName:      caller.Admin,
		kvpilotv1.ReplicaService_Undrain_FullMethodName:    caller.Admin,
		kvpilotv1.ReplicaService_List_FullMethodName:       caller.Route | caller.Observe,
		kvpilotv1.ReplicaService_Get_FullMethodName:        caller.Route | caller.Observe,
		kvpilotv1.ReplicaService_Watch_FullMethodName:      caller.Route | caller.Observe,
	}
}
