// Package standby holds requests for models that have no ready replica, where something scales their pools from zero.
//
// Room.Wait blocks until a replica of the model is ready. Only requests for the models that the settings name wait, each for Config.MaxWait at
// most, and no more than Config.MaxRequests and Config.MaxBytes at once. While requests wait, the replicas that are known and not ready are
// probed often, so that the first one is found soon after its start. With Config.Wake, Room.Run wakes engines that sleep. All methods are safe for concurrent use; a nil Room holds nothing.
package standby
